// The iteration that is pointed at, by mouse or keyboard, shared by all charts of a page without drawing them anew.
import { createContext, useContext, useSyncExternalStore } from "react";

export class Pointed {
  private at: number | null = null;
  private readonly listeners = new Set<() => void>();

  /** The first iteration of the bin that is pointed at. */
  readonly current = (): number | null => this.at;

  readonly set = (iteration: number | null): void => {
    if (iteration === this.at) return;
    this.at = iteration;
    for (const listener of this.listeners) listener();
  };

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };
}

export const PointedContext = createContext(new Pointed());

export const usePointing = (): Pointed => useContext(PointedContext);

export function usePointed(): number | null {
  const pointed = usePointing();
  return useSyncExternalStore(pointed.subscribe, pointed.current);
}
