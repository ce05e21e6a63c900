// The iteration under the pointer or the keyboard cursor, shared by all charts of a page without redrawing them.
import { createContext, useContext, useSyncExternalStore } from "react";

export class HoveredIteration {
  private at: number | null = null;
  private readonly listeners = new Set<() => void>();

  /** The first iteration of the hovered bin. */
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

export const HoveredIterationContext = createContext(new HoveredIteration());

export const useHoveredStore = (): HoveredIteration => useContext(HoveredIterationContext);

export function useHoveredIteration(): number | null {
  const pointed = useHoveredStore();
  return useSyncExternalStore(pointed.subscribe, pointed.current);
}
