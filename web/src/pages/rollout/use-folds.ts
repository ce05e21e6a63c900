// Which texts of the transcript are unfolded.
import { useCallback, useState } from "react";
import { toggled } from "../../parts/message";
import { foldsOf } from "./transcript-find";
import type { Row } from "./transcript-rows";

interface Folds {
  opened: ReadonlySet<string>;
  toggle: (fold: string) => void;
  open: (fold: string) => void;
  /** Unfold all texts of some rows, or fold them where all are unfolded. */
  toggleAll: (rows: readonly Row[], belongs: (row: Row) => boolean) => void;
}

export function useFolds(): Folds {
  const [opened, setOpened] = useState<ReadonlySet<string>>(new Set());
  const toggle = useCallback((fold: string) => setOpened((before) => toggled(before, fold)), []);
  const open = useCallback((fold: string) => setOpened((before) => new Set(before).add(fold)), []);
  const toggleAll = useCallback((rows: readonly Row[], belongs: (row: Row) => boolean) => {
    const folds = foldsOf(rows, belongs);
    const names = new Set(folds.map((one) => one.fold));
    const unfolds = folds.some((one) => !one.open);
    setOpened((before) => (unfolds ? new Set([...before, ...names]) : new Set([...before].filter((fold) => !names.has(fold)))));
  }, []);
  return { opened, toggle, open, toggleAll };
}
