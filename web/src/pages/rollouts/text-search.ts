// The text search of a listing: the server is asked for one piece after another, until all is searched or the reader stops it.
import { useCallback, useEffect, useState } from "react";
import type { SearchResponse } from "../../source/schema";
import { useSource } from "../../source/source";

/** After so many hits more, the search waits for the reader. */
const HITS = 10_000;

export interface TextSearch {
  /** How far it came; null before the first answer, and if there is nothing to search for. */
  progress: SearchResponse | null;
  /** For requests about what was found: null before the first answer, undefined without a search or after an error, which the listing shows too. */
  since: string | null | undefined;
  going: boolean;
  /** Stop, or go on. */
  toggle: () => void;
}

interface State {
  key: string;
  progress: SearchResponse | null;
  /** How far it had come when it last found something: until it finds more, no request is made again. */
  since: string | null;
  stopped: boolean;
  /** The number of hits after which it waits. */
  enough: number;
  failed: boolean;
}

/** Leaving the page, or another text, ends the search: the server works for at most half a second longer. */
export function useTextSearch(run: string, text: string): TextSearch {
  const source = useSource();
  const key = JSON.stringify([run, text]);
  const [state, setState] = useState<State>(() => begin(key));
  const shown = state.key === key ? state : begin(key);
  const searches = source.live && text !== "";
  const going = searches && !shown.stopped && !shown.failed && shown.progress?.since !== "";
  const since = shown.progress?.since;
  useEffect(() => {
    if (!going) return;
    let left = false;
    source.ask<SearchResponse>("search", { run, search: text, since }).then(
      (progress) => !left && setState((before) => advanced(before.key === key ? before : begin(key), progress)),
      () => !left && setState({ ...begin(key), failed: true }),
    );
    return () => {
      left = true;
    };
  }, [source, run, text, key, going, since]);
  const toggle = useCallback(
    () => setState((before) => ({ ...before, stopped: !before.stopped, since: before.progress?.since ?? null, enough: (before.progress?.hits ?? 0) + HITS })),
    [],
  );
  return { progress: searches ? shown.progress : null, since: searches && !shown.failed ? shown.since : undefined, going, toggle };
}

const begin = (key: string): State => ({ key, progress: null, since: null, stopped: false, enough: HITS, failed: false });

function advanced(before: State, progress: SearchResponse): State {
  const ended = progress.since === "" || progress.hits >= before.enough;
  const found = progress.hits !== before.progress?.hits;
  return { ...before, progress, since: found || ended ? progress.since : before.since, stopped: ended && progress.since !== "" };
}
