// The frame around every page: breadcrumbs, tabs of a run, theme, and help.
import { type ReactNode, useMemo, useRef } from "react";
import { filter, toRollouts, toRun, toRuns, toSql } from "./addresses";
import { DamageBanner } from "./parts/damage-banner";
import { VisibleText } from "./parts/text";
import { go, Link } from "./router";
import { useActiveShortcuts, useShortcuts } from "./shortcuts";
import { useSource } from "./source/source";
import { useLostServer } from "./source/use-answer";
import { toggleTheme, useTheme } from "./theme";

interface Crumb {
  label: string;
  to?: string;
}

interface ShellProperties {
  crumbs: readonly Crumb[];
  /** The run whose views the tabs lead to, and which of them this is. */
  run?: string;
  tab?: "run" | "rollouts" | "sql" | "none";
  children: ReactNode;
}

export function Shell({ crumbs, run, tab = "none", children }: ShellProperties) {
  const source = useSource();
  const sheet = useRef<HTMLDialogElement>(null);
  const theme = useTheme();
  const lost = useLostServer();
  const keys = useMemo(
    () => [
      { keys: "?", does: "Show or hide these keys", run: () => sheet.current?.showModal() },
      { keys: "t", does: "Switch between light and dark", run: toggleTheme },
      { keys: "g h", does: "Go to all runs", run: () => go(toRuns()) },
      ...(run === undefined
        ? []
        : [
            { keys: "g o", does: "Go to the run's overview", run: () => go(toRun(run)) },
            { keys: "g r", does: "Go to the run's rollouts", run: () => go(toRollouts(run)) },
            ...(source.live ? [{ keys: "g s", does: "Go to SQL", run: () => go(toSql(run)) }] : []),
          ]),
    ],
    [run, source.live],
  );
  useShortcuts(keys);
  return (
    <div className="shell">
      <a className="only-heard" href="#view" onClick={skip}>
        Skip to the content
      </a>
      <header className="top">
        <Link className="brand" to={toRuns()} aria-label="Rolltrace: all runs">
          <Mark /> <span>Rolltrace</span>
        </Link>
        <nav aria-label="Where you are" style={{ flex: 1, minWidth: 0 }}>
          <ol className="crumbs">
            {crumbs.map((crumb, place) => (
              <li key={place}>
                {crumb.to === undefined ? <bdi aria-current="page"><VisibleText text={crumb.label} /></bdi> : <Link to={crumb.to}><bdi><VisibleText text={crumb.label} /></bdi></Link>}
              </li>
            ))}
          </ol>
        </nav>
        <button type="button" className="button quiet" onClick={toggleTheme} aria-label={theme === "dark" ? "Use light colours" : "Use dark colours"}>
          {theme === "dark" ? "☾" : "☀"}
        </button>
        <button type="button" className="button quiet" onClick={() => sheet.current?.showModal()} aria-label="Keyboard shortcuts">
          <kbd>?</kbd>
        </button>
      </header>
      {lost !== null && (
        <p className="banner lost" role="alert">
          What is shown may be old: {lost.message}
        </p>
      )}
      {source.selection !== null && (
        <p className="banner" role="note">
          <VisibleText text={source.selection.text} />
          {source.selection.marks && run !== undefined && (
            <>
              {" "}
              <Link to={toRollouts(run, { filter: filter("selected", "is", "true") })}>Show these</Link>
            </>
          )}
        </p>
      )}
      {run !== undefined && <DamageBanner run={run} />}
      {run !== undefined && (
        <nav className="tabs" aria-label="Views of the run">
          <Tab to={toRun(run)} current={tab === "run"} label="Overview" />
          <Tab to={toRollouts(run)} current={tab === "rollouts"} label="Rollouts" />
          {source.live && <Tab to={toSql(run)} current={tab === "sql"} label="SQL" />}
        </nav>
      )}
      <main className="view" id="view" tabIndex={-1}>
        {children}
      </main>
      <dialog className="sheet" ref={sheet} aria-label="Keyboard shortcuts" onKeyDown={(event) => event.key === "?" && sheet.current?.close()}>
        <Help close={() => sheet.current?.close()} />
      </dialog>
    </div>
  );
}

function Tab({ to, current, label }: { to: string; current: boolean; label: string }) {
  return (
    <Link to={to} {...(current ? { "aria-current": "page" as const } : {})}>
      {label}
    </Link>
  );
}

function Help({ close }: { close: () => void }) {
  const shortcuts = useActiveShortcuts();
  return (
    <>
      <header>
        <h2>Keyboard shortcuts</h2>
        <button type="button" className="button quiet" onClick={close} aria-label="Close">
          ✕
        </button>
      </header>
      <dl className="shortcuts">
        {shortcuts.map((shortcut) => (
          <div key={shortcut.keys} style={{ display: "contents" }}>
            <dt>
              {shortcut.keys.split(" ").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{shortcut.does}</dd>
          </div>
        ))}
      </dl>
    </>
  );
}

function Mark() {
  return (
    <svg width="22" height="22" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="var(--accent)" />
      <path d="M7 22 12 13l5 6 8-10" fill="none" stroke="var(--surface)" strokeWidth="3" strokeLinecap="round" strokeLinejoin="round" />
      <circle cx="25" cy="9" r="2.6" fill="var(--surface)" />
    </svg>
  );
}

// The address behind `#` is the view's: skipping must not change it.
function skip(event: React.MouseEvent): void {
  event.preventDefault();
  document.getElementById("view")?.focus();
}
