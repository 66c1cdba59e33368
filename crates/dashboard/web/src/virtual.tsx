// A list of any length, of which only the visible rows are read and drawn.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { query, type Page } from "./api";
import { setParameters, useLast, usePoll } from "./hooks";
import { Empty, Failure, Loading } from "./ui";

const ROW = 38;
/** Rows of one request; a multiple of it is its offset. */
const CHUNK = 60;

export interface VirtualColumn<R> {
  id: string;
  heading: string;
  cell: (row: R) => ComponentChildren;
  /** Its key for the server; columns without one are not sorted by. */
  sort?: string;
  numeric?: boolean;
  extra?: boolean;
}

interface Props<R> {
  label: string;
  path: string;
  parameters: Record<string, string | undefined>;
  columns: VirtualColumn<R>[];
  sort: string;
  desc: boolean;
  empty: ComponentChildren;
  rowKey: (row: R) => string;
  onPage?: (page: Page<R>) => void;
}

export function VirtualList<R>({ label, path, parameters, columns, sort, desc, empty, rowKey, onPage }: Props<R>) {
  const box = useRef<HTMLDivElement>(null);
  const [window_, setWindow] = useState({ top: 0, height: 600 });
  const first = Math.max(0, Math.floor(window_.top / ROW) - 5);
  const visible = Math.ceil(window_.height / ROW) + 10;
  const offset = Math.max(0, Math.floor(first / CHUNK) * CHUNK);
  const limit = Math.ceil((first + visible - offset) / CHUNK) * CHUNK;
  const { data, error } = usePoll<Page<R>>(query(path, { ...parameters, sort, desc, offset, limit }));
  const page = useLast(data);
  useEffect(() => {
    if (data && onPage) onPage(data);
  }, [data]);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = () => setWindow({ top: element.scrollTop, height: element.clientHeight });
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", measure);
    };
    // The box is another one after an empty list.
  }, [page === null || page.matched === 0]);
  // Another search starts at its first row.
  const wanted = JSON.stringify([parameters, sort, desc]);
  useEffect(() => box.current?.scrollTo({ top: 0 }), [wanted]);
  if (!page) return error ? <Failure error={error} /> : <Loading />;
  if (page.matched === 0) return <Empty>{empty}</Empty>;
  const rows: { index: number; row: R | undefined }[] = [];
  for (let index = first; index < Math.min(first + visible, page.matched); index += 1) {
    rows.push({ index, row: page.rows[index - page.offset] });
  }
  const kind = (column: VirtualColumn<R>) => ["cell", `col-${column.id}`, column.numeric && "num", column.extra && "extra"].filter(Boolean).join(" ");
  const order = (column: VirtualColumn<R>) => (column.sort === sort ? (desc ? "descending" : "ascending") : "none");
  const sortBy = (column: VirtualColumn<R>) => {
    const descends = column.sort === sort ? !desc : column.numeric === true;
    setParameters({ sort: column.sort === "name" ? "" : (column.sort ?? ""), desc: descends ? "1" : "" });
  };
  return (
    <div class="virtual" role="table" aria-label={label} aria-rowcount={page.matched + 1} aria-colcount={columns.length}>
      <div role="rowgroup" class="virtual-head">
        <div role="row" aria-rowindex={1} class="virtual-row">
          {columns.map((column) => (
            <div role="columnheader" key={column.id} class={kind(column)} {...(column.sort ? { "aria-sort": order(column) as "none" } : {})}>
              {column.sort ? (
                <button type="button" class="sort" onClick={() => sortBy(column)}>
                  {column.heading}
                  <span aria-hidden="true">{column.sort === sort ? (desc ? " ↓" : " ↑") : ""}</span>
                </button>
              ) : (
                column.heading
              )}
            </div>
          ))}
        </div>
      </div>
      <div class="virtual-box" ref={box} role="rowgroup" tabIndex={0} aria-label={`${label}, scrolls`}>
        <div class="virtual-space" role="presentation" style={{ height: `${page.matched * ROW}px` }}>
          {rows.map(({ index, row }) => (
            <div role="row" key={row ? rowKey(row) : `row-${index}`} class="virtual-row" aria-rowindex={index + 2} style={{ transform: `translateY(${index * ROW}px)` }}>
              {columns.map((column) => (
                <div role="cell" key={column.id} class={kind(column)}>
                  {row ? column.cell(row) : <span class="ghost" />}
                </div>
              ))}
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}
