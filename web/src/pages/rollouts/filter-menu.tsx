// A menu of all columns; selecting one opens its filter.
import { type RefObject, useState } from "react";
import { Name } from "../../parts/text";
import { Popover } from "../../parts/popover";
import type { Column } from "../../source/schema";
import { ColumnFilter } from "./column-filter";
import { capital } from "./filters";
import { Funnel } from "./table-head";

interface FilterMenuProperties {
  run: string;
  columns: readonly Column[];
  measures: ReadonlySet<string>;
  button: RefObject<HTMLButtonElement | null>;
}

export function FilterMenu({ run, columns, measures, button }: FilterMenuProperties) {
  return (
    <Popover
      label="Filter by a column"
      buttonRef={button}
      button={
        <>
          <Funnel /> Filter
        </>
      }
    >
      {(close) => <Chosen run={run} columns={columns} measures={measures} close={close} />}
    </Popover>
  );
}

function Chosen({ run, columns, measures, close }: Omit<FilterMenuProperties, "button"> & { close: () => void }) {
  const [column, setColumn] = useState<Column | null>(null);
  const [typed, setTyped] = useState("");
  if (column !== null)
    return (
      <>
        <button type="button" className="button quiet rollouts-back" autoFocus onClick={() => setColumn(null)}>
          ← All columns
        </button>
        <ColumnFilter run={run} column={column} measured={measures.has(column.name)} close={close} />
      </>
    );
  const listed = columns.filter((one) => one.label.toLowerCase().includes(typed.toLowerCase()) || one.name.includes(typed));
  return (
    <div className="rollouts-menu">
      <form
        className="rollouts-typed"
        onSubmit={(event) => {
          event.preventDefault();
          if (listed[0] !== undefined) setColumn(listed[0]);
        }}
      >
        <input className="field" aria-label="Find a column" placeholder="Filter by…" value={typed} onChange={(event) => setTyped(event.target.value)} />
      </form>
      <ul className="rollouts-values">
        {listed.map((one) => (
          <li key={one.name}>
            <button type="button" className="rollouts-value" onClick={() => setColumn(one)}>
              <Name text={capital(one.label)} />
              <span className="small faint">{one.type}</span>
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}
