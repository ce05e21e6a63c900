// Addresses: every view is a path and parameters behind the `#`, the same on a server and in a report's file.
import { useSyncExternalStore, type ComponentProps } from "react";
import { searchOf, type Parameters } from "./source/source";

export interface Route {
  /** Decoded parts of the path: `["run", "demo/arithmetic", "rollouts"]`. */
  path: string[];
  parameters: URLSearchParams;
}

let shown: { hash: string; route: Route } = { hash: "", route: { path: [], parameters: new URLSearchParams() } };

export function parse(hash: string): Route {
  const [path = "", search = ""] = splitOnce(hash.replace(/^#\/?/, ""), "?");
  return { path: path.split("/").filter(Boolean).map(decode), parameters: new URLSearchParams(search) };
}

/** The address of a view. */
export function address(path: readonly (string | number)[], parameters: Parameters | URLSearchParams = {}): string {
  const search = (parameters instanceof URLSearchParams ? parameters : searchOf(parameters)).toString();
  return `#/${path.map((part) => encodeURIComponent(String(part))).join("/")}${search ? `?${search}` : ""}`;
}

/** Go to an address; `replace` for changes within a view that are no step of the history, such as typing. */
export function go(to: string, options: { replace?: boolean } = {}): void {
  if (to === window.location.hash) return;
  if (options.replace) window.history.replaceState(null, "", to);
  else window.history.pushState(null, "", to);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute(): Route {
  return useSyncExternalStore(subscribe, current);
}

/** The view's parameters changed in some places: null takes one away, an array gives one several times. */
export function changed(route: Route, changes: Parameters): string {
  const parameters = new URLSearchParams(route.parameters);
  for (const [name, value] of Object.entries(changes)) {
    parameters.delete(name);
    for (const one of searchOf({ [name]: value }).getAll(name)) parameters.append(name, one);
  }
  return address(route.path, parameters);
}

interface LinkProperties extends Omit<ComponentProps<"a">, "href"> {
  to: string;
}

export function Link({ to, children, ...rest }: LinkProperties) {
  return (
    <a href={to} {...rest}>
      {children}
    </a>
  );
}

function current(): Route {
  const { hash } = window.location;
  if (shown.hash !== hash) shown = { hash, route: parse(hash) };
  return shown.route;
}

function subscribe(onChange: () => void): () => void {
  window.addEventListener("hashchange", onChange);
  window.addEventListener("popstate", onChange);
  return () => {
    window.removeEventListener("hashchange", onChange);
    window.removeEventListener("popstate", onChange);
  };
}

function splitOnce(text: string, mark: string): [string, string] {
  const place = text.indexOf(mark);
  return place < 0 ? [text, ""] : [text.slice(0, place), text.slice(place + 1)];
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
