// The theme, light or dark: the system's, unless the user selected one.
import { useSyncExternalStore } from "react";

type Theme = "light" | "dark";
const KEY = "rolltrace.theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

export function useTheme(): Theme {
  return useSyncExternalStore(subscribe, current);
}

export function toggleTheme(): void {
  remember(current() === "dark" ? "light" : "dark");
  apply();
}

/** Write the theme to the document, where the style sheet reads it. */
export function apply(): void {
  document.documentElement.dataset.theme = current();
  for (const listener of listeners) listener();
}

function current(): Theme {
  const chosen = recall();
  return chosen === "light" || chosen === "dark" ? chosen : system.matches ? "dark" : "light";
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

// A report that is opened from a file may have no storage.
function recall(): string | null {
  try {
    return window.localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function remember(theme: Theme): void {
  try {
    window.localStorage.setItem(KEY, theme);
  } catch {
    document.documentElement.dataset.theme = theme;
  }
}

system.addEventListener("change", apply);
