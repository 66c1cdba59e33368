import { useState } from "preact/hooks";
import { query, type Event, type Linked } from "../api";
import { clock, moment } from "../format";
import { usePoll, useSettled } from "../hooks";
import { Empty, Failure, Loading, ObjectLink, Section, State, Title } from "../ui";

interface Data extends Linked {
  rows: Event[];
}

export function Events() {
  const [typed, setTyped] = useState("");
  const search = useSettled(typed);
  return (
    <>
      <Title>Events</Title>
      <div class="filters">
        <label class="hidden" for="search">
          Search events
        </label>
        <input id="search" type="search" placeholder="Search by name or message" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
      </div>
      <Section title="Changes of state" flush>
        <EventList search={search} />
      </Section>
    </>
  );
}

/** The last events, newest first; those of one object if it is named. */
export function EventList({ search = "", kind, name }: { search?: string; kind?: string; name?: string }) {
  const { data, error } = usePoll<Data>(query("/api/events", { q: search, kind, name, limit: name ? 20 : 100 }));
  if (!data) return error ? <Failure error={error} /> : <Loading />;
  if (data.rows.length === 0) return <Empty>{search ? "No event matches." : "No change since this dashboard follows the scheduler."}</Empty>;
  return (
    <ul class="events">
      {data.rows.map((event) => (
        <li key={event.number}>
          <time dateTime={new Date(event.atMs).toISOString()} title={moment(event.atMs)}>
            {Date.now() - event.atMs > 86_400_000 ? moment(event.atMs) : clock(event.atMs)}
          </time>
          <State state={event.state} />
          <span class="event-text">
            {!name && (
              <>
                <ObjectLink kind={event.kind} name={event.name} /> <span class="kind-tag">{event.kind}</span>{" "}
              </>
            )}
            {event.message}
          </span>
        </li>
      ))}
    </ul>
  );
}
