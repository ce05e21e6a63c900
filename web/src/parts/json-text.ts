// Indents JSON without parsing its numbers, so that no digit is lost.

interface ReadJson {
  /** Indented; the text itself where it is not JSON. */
  text: string;
  /** Why it is not JSON. */
  problem: string | null;
  /** Where it is an object with texts of several lines in it, such as code: its fields, each as it is best read. */
  fields: [string, string][] | null;
}

export function readJson(text: string): ReadJson {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return { text, problem: error instanceof Error ? error.message : String(error), fields: null };
  }
  const several = isObject(value) && Object.values(value).some((one) => typeof one === "string" && one.includes("\n"));
  const fields = several ? fieldsOf(text) : null;
  const short = text.length <= 60 && !text.includes("\n");
  return { text: short ? text : indented(text), problem: null, fields };
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The fields of an object: texts as they are meant, anything else indented. */
function fieldsOf(json: string): [string, string][] {
  const fields: [string, string][] = [];
  let depth = 0;
  let name = "";
  let parts: string[] = [];
  const end = () => {
    if (name !== "") fields.push([JSON.parse(name) as string, parts.length === 1 && parts[0]?.startsWith('"') ? (JSON.parse(parts[0]) as string) : indented(parts.join(" "))]);
    name = "";
    parts = [];
  };
  for (const [token] of json.matchAll(TOKENS)) {
    if (token === "{" || token === "[") depth += 1;
    if (token === "}" || token === "]") depth -= 1;
    if (depth === 0 || (depth === 1 && token === ",")) end();
    else if (depth === 1 && name === "" && token.startsWith('"')) name = token;
    else if (name !== "" && !(depth === 1 && token === ":")) parts.push(token);
  }
  return fields;
}

const TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/** Sound JSON, indented by two; every token stays as it was written. */
export function indented(json: string): string {
  const out: string[] = [];
  let depth = 0;
  const line = () => out.push("\n", "  ".repeat(depth));
  for (const [token] of json.matchAll(TOKENS)) {
    const before = out.at(-1);
    if (token === "{" || token === "[") {
      if (before === OPEN) line();
      out.push(token, OPEN);
      depth += 1;
    } else if (token === "}" || token === "]") {
      depth -= 1;
      if (before !== OPEN) line();
      out.push(token);
    } else if (token === ",") {
      out.push(",");
      line();
    } else if (token === ":") out.push(": ");
    else {
      if (before === OPEN) line();
      out.push(token);
    }
  }
  return out.join("");
}

/** Stands after an opening bracket, so that an empty pair stays on one line. */
const OPEN = "";
