// Gives the details more room than the transcript, or less.
import { Link, useRoute } from "../../router";
import { toView, viewState } from "./view-state";

export function WideLink() {
  const route = useRoute();
  const { wide } = viewState(route);
  const label = wide ? "Make the details narrow" : "Make the details wide";
  return (
    <Link className="button quiet rollout-wide" to={toView(route, { wide: wide ? null : "1" })} aria-label={label} title={`${label} (w)`}>
      <svg width="16" height="16" viewBox="0 0 16 16" fill="none" stroke="currentColor" strokeWidth="1.4" aria-hidden="true">
        <rect x="1.5" y="2.5" width="13" height="11" rx="2" />
        <path d={wide ? "M6 2.5v11" : "M10 2.5v11"} />
      </svg>
    </Link>
  );
}
