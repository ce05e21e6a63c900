// The way to the rollouts before and after, up to the group, and back to the listing.
import { Link } from "../../router";
import type { Walk } from "./use-walk";

export function WalkBar({ walk, group }: { walk: Walk; group: string }) {
  return (
    <nav className="rollout-walk" aria-label="Other rollouts">
      <Way to={walk.previous} label="Previous rollout" keys="k">
        ‹ Previous
      </Way>
      <Link className="rollout-place number" to={walk.list} title="Back to the listing (l)">
        {walk.place}
      </Link>
      <Way to={walk.next} label="Next rollout" keys="j">
        Next ›
      </Way>
      <Link className="button" to={group} title="Up to the group (u)">
        ↑ Group
      </Link>
    </nav>
  );
}

function Way({ to, label, keys, children }: { to: string | null; label: string; keys: string; children: string }) {
  if (to === null)
    return (
      <span className="button rollout-nowhere" aria-disabled="true" role="link" aria-label={label}>
        {children}
      </span>
    );
  return (
    <Link className="button" to={to} aria-label={label} title={`${label} (${keys})`}>
      {children}
    </Link>
  );
}
