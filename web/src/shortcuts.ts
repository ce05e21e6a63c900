// Keyboard shortcuts: each page registers its keys, and the help sheet lists the active ones.
import { useEffect, useSyncExternalStore } from "react";

export interface Shortcut {
  /** As `KeyboardEvent.key` has it, such as `j`, `?` or `ArrowLeft`; two keys in a row as `g r`. */
  keys: string;
  does: string;
  run: () => void;
}

let active: readonly (readonly Shortcut[])[] = [];
const listeners = new Set<() => void>();
let first: { key: string; at: number } | null = null;

/** Let these keys work while the component is shown; later ones win. */
export function useShortcuts(shortcuts: readonly Shortcut[]): void {
  useEffect(() => {
    active = [...active, shortcuts];
    notify();
    return () => {
      active = active.filter((one) => one !== shortcuts);
      notify();
    };
  }, [shortcuts]);
}

/** All that work now. */
export function useActiveShortcuts(): readonly Shortcut[] {
  const all = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => active,
  );
  const byKeys = new Map(all.flat().map((one) => [one.keys, one]));
  return [...byKeys.values()];
}

function notify(): void {
  for (const listener of listeners) listener();
}

function onKey(event: KeyboardEvent): void {
  const target = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))) {
    if (event.key === "Escape") target.blur();
    return;
  }
  if (document.querySelector("dialog[open]") !== null) return;
  // What has the focus does what these keys say of it.
  if ((event.key === "Enter" || event.key === " ") && target instanceof Element && target.closest("a, button, summary") !== null) return;
  const both = first !== null && event.timeStamp - first.at < 1000 ? `${first.key} ${event.key}` : null;
  const known = active.flat().reverse();
  const hit = known.find((one) => one.keys === both) ?? known.find((one) => one.keys === event.key);
  first = known.some((one) => one.keys.startsWith(`${event.key} `)) ? { key: event.key, at: event.timeStamp } : null;
  if (hit === undefined) return;
  event.preventDefault();
  hit.run();
}

window.addEventListener("keydown", onKey);
