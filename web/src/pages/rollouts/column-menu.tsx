// A menu that selects and orders the columns of the table.
import { type RefObject, useState } from "react";
import { Name, plainText } from "../../parts/text";
import { Popover } from "../../parts/popover";
import type { Column } from "../../source/schema";
import { capital } from "./filters";
import type { Change } from "./listing";

interface ColumnMenuProperties {
  all: readonly Column[];
  shown: readonly Column[];
  change: Change;
  button: RefObject<HTMLButtonElement | null>;
}

export function ColumnMenu(properties: ColumnMenuProperties) {
  return (
    <Popover
      label="Choose columns"
      buttonRef={properties.button}
      button={
        <>
          Columns <span className="faint number">{properties.shown.length}</span>
        </>
      }
    >
      {() => <Choice {...properties} />}
    </Popover>
  );
}

function Choice({ all, shown, change }: ColumnMenuProperties) {
  const [typed, setTyped] = useState("");
  const names = shown.map((column) => column.name);
  const set = (columns: readonly string[]): void => change({ columns }, { replace: true });
  const fits = (column: Column): boolean => column.label.toLowerCase().includes(typed.toLowerCase()) || column.name.includes(typed);
  const others = all.filter((column) => !names.includes(column.name) && fits(column));
  return (
    <div className="rollouts-menu">
      <input className="field" aria-label="Find a column" placeholder="Find a column…" value={typed} onChange={(event) => setTyped(event.target.value)} />
      <ul className="rollouts-values" aria-label="Shown">
        {shown.map((column, place) =>
          fits(column) ? (
            <li key={column.name}>
              <Toggle column={column} shown toggle={() => set(names.filter((name) => name !== column.name))} />
              <Move label={`Move ${plainText(column.label)} to the left`} mark="↑" disabled={place === 0} move={() => set(swapped(names, place - 1))} />
              <Move label={`Move ${plainText(column.label)} to the right`} mark="↓" disabled={place === names.length - 1} move={() => set(swapped(names, place))} />
            </li>
          ) : null,
        )}
      </ul>
      {others.length > 0 && (
        <ul className="rollouts-values rollouts-hidden" aria-label="Not shown">
          {others.map((column) => (
            <li key={column.name}>
              <Toggle column={column} shown={false} toggle={() => set([...names, column.name])} />
            </li>
          ))}
        </ul>
      )}
      <button type="button" className="button" onClick={() => change({ columns: null }, { replace: true })}>
        The usual columns
      </button>
    </div>
  );
}

function Toggle({ column, shown, toggle }: { column: Column; shown: boolean; toggle: () => void }) {
  return (
    <label className="rollouts-value">
      <input type="checkbox" checked={shown} onChange={toggle} />
      <Name text={capital(column.label)} />
    </label>
  );
}

function Move({ label, mark, disabled, move }: { label: string; mark: string; disabled: boolean; move: () => void }) {
  return (
    <button type="button" className="rollouts-not" aria-label={label} title={label} disabled={disabled} onClick={move}>
      {mark}
    </button>
  );
}

/** The names with one and the next exchanged. */
function swapped(names: readonly string[], place: number): string[] {
  const next = [...names];
  [next[place], next[place + 1]] = [names[place + 1] ?? "", names[place] ?? ""];
  return next;
}
