// The editor of a statement, with examples.
import { useEffect, useMemo, useRef } from "react";
import { Popover } from "../../parts/popover";
import { useShortcuts } from "../../shortcuts";
import { EXAMPLES } from "./examples";

interface EditorProperties {
  text: string;
  write: (text: string) => void;
  start: (sql: string) => void;
  running: boolean;
}

/** The event with which the table reference inserts a name at the cursor. */
export const INSERT = "rolltrace-insert";

export function Editor({ text, write, start, running }: EditorProperties) {
  const field = useRef<HTMLTextAreaElement>(null);
  useShortcuts(useMemo(() => [{ keys: "/", does: "Write a statement; Ctrl+Enter runs it", run: () => field.current?.focus() }], []));
  useEffect(() => {
    const insert = (event: Event): void => {
      const element = field.current;
      if (element === null || !(event instanceof CustomEvent)) return;
      const name = String(event.detail);
      const { selectionStart: from, selectionEnd: to } = element;
      write(element.value.slice(0, from) + name + element.value.slice(to));
      window.requestAnimationFrame(() => {
        element.focus();
        element.setSelectionRange(from + name.length, from + name.length);
      });
    };
    window.addEventListener(INSERT, insert);
    return () => window.removeEventListener(INSERT, insert);
  }, [write]);
  return (
    <form
      className="card sql-editor"
      onSubmit={(event) => {
        event.preventDefault();
        start(text);
      }}
    >
      <textarea
        ref={field}
        aria-label="SQL statement"
        className="mono"
        rows={Math.min(14, Math.max(4, text.split("\n").length))}
        placeholder={'select env, avg(reward) from rollouts group by env'}
        spellCheck={false}
        autoCapitalize="off"
        autoComplete="off"
        value={text}
        onChange={(event) => write(event.target.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
          event.preventDefault();
          start(text);
        }}
      />
      <div className="row wrap">
        <button type="submit" className="button primary" disabled={text.trim() === "" || running}>
          {running ? "Running…" : "Run"}
        </button>
        <Popover label="Examples" button={<>Examples ▾</>}>
          {(close) => (
            <ul className="sql-examples">
              {EXAMPLES.map((example) => (
                <li key={example.title}>
                  <button
                    type="button"
                    onClick={() => {
                      write(example.sql);
                      start(example.sql);
                      close();
                    }}
                  >
                    {example.title}
                  </button>
                </li>
              ))}
            </ul>
          )}
        </Popover>
        <span className="small faint sql-hint">
          <span>
            <kbd>Ctrl</kbd> <kbd>↵</kbd> runs it.
          </span>{" "}
          One SELECT, of DuckDB's SQL; at most ten seconds.
        </span>
      </div>
    </form>
  );
}
