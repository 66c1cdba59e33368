// Inference requests from typed values, and the same as commands.
import type { Tensor } from "./api";

export interface Built {
  name: string;
  datatype: string;
  shape: number[];
  /** JSON of the flat list. */
  data: string;
  /** Why the server will refuse it. */
  problem: string;
}

const MAX_ZEROS = 4096;

/** Zeros in the shape of an input; a dynamic dimension is 1. */
export function zeros(input: Tensor): string {
  const shape = input.shape.map((size) => (size < 0 ? 1 : size));
  const length = shape.reduce((all, size) => all * size, 1);
  const zero = input.datatype === "BYTES" ? '""' : input.datatype === "BOOL" ? "false" : input.datatype.startsWith("FP") || input.datatype === "BF16" ? "0.0" : "0";
  if (length > MAX_ZEROS) return "[]";
  const flat: string[] = new Array<string>(length).fill(zero);
  const row = shape.at(-1) ?? 1;
  if (shape.length < 2 || row >= length || row === 0) return `[${flat.join(", ")}]`;
  const rows: string[] = [];
  for (let at = 0; at < length; at += row) rows.push(`  [${flat.slice(at, at + row).join(", ")}]`);
  return `[\n${rows.join(",\n")}\n]`;
}

/** The tensor of a text with a flat or nested list. Throws if it is no such list. */
export function build(input: Tensor, text: string): Built {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`not a JSON list: ${error instanceof Error ? error.message : String(error)}`);
  }
  if (!Array.isArray(value)) value = [value];
  const nested: number[] = [];
  for (let at: unknown = value; Array.isArray(at); at = at[0]) nested.push(at.length);
  const flat = (value as unknown[]).flat(nested.length) as unknown[];
  if (flat.some((item) => item === null || typeof item === "object")) throw new Error("values must be numbers, strings or booleans");
  const isFlat = nested.length === 1;
  if (!isFlat && flat.length !== nested.reduce((all, size) => all * size, 1)) throw new Error("lists have different lengths");
  const base = { name: input.name, datatype: input.datatype };
  // As it was typed: numbers beyond 2^53 keep their digits.
  const data = isFlat && text.trim().startsWith("[") ? text.trim().replace(/\s+/g, " ") : JSON.stringify(flat);
  if (!isFlat) {
    const shape = nested.length + 1 === input.shape.length ? [1, ...nested] : nested;
    const differs = shape.length !== input.shape.length || shape.some((size, at) => (input.shape[at] ?? -1) >= 0 && input.shape[at] !== size);
    return { ...base, shape, data, problem: differs ? `the model expects the shape ${shapeText(input.shape)}, this is ${shapeText(shape)}` : "" };
  }
  const known = input.shape.filter((size) => size >= 0).reduce((all, size) => all * size, 1);
  const dynamic = input.shape.filter((size) => size < 0).length;
  const rest = dynamic > 0 && known > 0 ? flat.length / known : 1;
  let left = Number.isInteger(rest) && rest > 0 ? rest : 1;
  const shape = input.shape.map((size) => {
    if (size >= 0) return size;
    const taken = left;
    left = 1;
    return taken;
  });
  const needed = shape.reduce((all, size) => all * size, 1);
  const problem = needed === flat.length ? "" : `the shape ${shapeText(shape)} needs ${needed} values, got ${flat.length}`;
  return { ...base, shape, data, problem };
}

export function shapeText(shape: number[]): string {
  return `[${shape.map((size) => (size < 0 ? "any" : String(size))).join(", ")}]`;
}

export function body(tensors: Built[]): string {
  const one = (t: Built) => `{"name":${JSON.stringify(t.name)},"shape":${JSON.stringify(t.shape)},"datatype":${JSON.stringify(t.datatype)},"data":${t.data}}`;
  return `{"inputs":[${tensors.map(one).join(",")}]}`;
}

const quote = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;
const python = (text: string) => JSON.stringify(text);

export function curl(url: string, json: string, auth: boolean): string {
  const header = auth ? ` \\\n  -H "authorization: Bearer $GANTRY_API_KEY"` : "";
  return `curl ${url}${header} \\\n  -d ${quote(json)}`;
}

export function pythonRest(url: string, json: string, auth: boolean): string {
  const headers = [`"content-type": "application/json"`];
  if (auth) headers.push(`"authorization": f"Bearer {os.environ['GANTRY_API_KEY']}"`);
  return `import json
${auth ? "import os\n" : ""}import urllib.request

request = urllib.request.Request(
    ${python(url)},
    data=${python(json)}.encode(),
    headers={${headers.join(", ")}},
)
print(json.load(urllib.request.urlopen(request)))`;
}

const DTYPES: Record<string, string> = {
  BOOL: "bool",
  UINT8: "np.uint8",
  UINT16: "np.uint16",
  UINT32: "np.uint32",
  UINT64: "np.uint64",
  INT8: "np.int8",
  INT16: "np.int16",
  INT32: "np.int32",
  INT64: "np.int64",
  FP16: "np.float16",
  FP64: "np.float64",
  BYTES: "np.object_",
};

export function pythonTriton(address: string, model: string, tensors: Built[], auth: boolean): string {
  const lines = [`# pip install tritonclient[http]`, ...(auth ? ["import os"] : []), "import numpy as np", "import tritonclient.http as triton", "", `client = triton.InferenceServerClient(${python(address)})`, "inputs = []"];
  for (const tensor of tensors) {
    const data = tensor.datatype === "BOOL" ? tensor.data.replaceAll("true", "True").replaceAll("false", "False") : tensor.data;
    lines.push(
      `tensor = triton.InferInput(${python(tensor.name)}, ${JSON.stringify(tensor.shape)}, ${python(tensor.datatype)})`,
      `tensor.set_data_from_numpy(np.array(${data}, dtype=${DTYPES[tensor.datatype] ?? "np.float32"}).reshape(${JSON.stringify(tensor.shape)}))`,
      "inputs.append(tensor)",
    );
  }
  const headers = auth ? `, headers={"authorization": f"Bearer {os.environ['GANTRY_API_KEY']}"}` : "";
  lines.push(`print(client.infer(${python(model)}, inputs${headers}).get_response())`);
  return lines.join("\n");
}
