// The tables and their columns; a click writes a name into the statement.
import { useState } from "react";
import { Answered, Loading } from "../../parts/states";
import type { SqlResponse } from "../../source/schema";
import { useAnswer } from "../../source/use-answer";
import { INSERT } from "./editor";

const TABLES: readonly [string, string][] = [
  ["rollouts", "one row for each rollout"],
  ["steps", "one for each turn of the policy"],
  ["messages", "one for each message"],
  ["calls", "one for each call of a grader or opponent"],
  ["scores", "one for each fact learnt later"],
  ["groups", "one for each group"],
  ["runs", "the run itself"],
  ["ledger", "one for each session"],
];
const RESERVED = new Set(["group", "index"]);

export function Reference({ run }: { run: string }) {
  const [open, setOpen] = useState(() => window.matchMedia("(min-width: 1000px)").matches);
  return (
    <details className="card sql-reference" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <h2>Tables</h2>
      </summary>
      <ul>
        {TABLES.map(([name, about]) => (
          <li key={name}>
            <Table run={run} name={name} about={about} />
          </li>
        ))}
      </ul>
    </details>
  );
}

function Table({ run, name, about }: { run: string; name: string; about: string }) {
  const [open, setOpen] = useState(false);
  return (
    <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary title={about}>
        <span className="mono">{name}</span> <span className="small faint">{about}</span>
      </summary>
      {open && <Columns run={run} table={name} />}
    </details>
  );
}

function Columns({ run, table }: { run: string; table: string }) {
  const answer = useAnswer<SqlResponse>("sql", { run, sql: `select * from ${table} limit 0`, limit: 1 });
  return (
    <Answered of={answer} loading={<Loading lines={3} height={12} />}>
      {({ columns }) => (
        <ul className="sql-columns">
          {columns.map((column) => (
            <li key={column.name}>
              <button type="button" className="mono" title={`Write ${column.name} into the statement`} onClick={() => insert(column.name)}>
                {column.name}
              </button>
              <span className="mono faint" title={column.type}>
                {column.type}
              </span>
            </li>
          ))}
        </ul>
      )}
    </Answered>
  );
}

function insert(name: string): void {
  const written = RESERVED.has(name) || !/^[a-z_]\w*$/i.test(name) ? `"${name.replaceAll('"', '""')}"` : name;
  window.dispatchEvent(new CustomEvent(INSERT, { detail: written }));
}
