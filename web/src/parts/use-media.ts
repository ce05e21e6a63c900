// Whether a media query holds now, such as that the screen is narrow.
import { useCallback, useSyncExternalStore } from "react";

export const NARROW = "(max-width: 640px)";

export function useMedia(query: string): boolean {
  const subscribe = useCallback(
    (listener: () => void) => {
      const media = window.matchMedia(query);
      media.addEventListener("change", listener);
      return () => media.removeEventListener("change", listener);
    },
    [query],
  );
  return useSyncExternalStore(subscribe, () => window.matchMedia(query).matches);
}
