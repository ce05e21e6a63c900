// The findings about a rollout or a group, with links to them on the run's page.
import { toRun } from "../addresses";
import { Link } from "../router";
import type { Mark } from "../source/findings";
import { Badge } from "./badge";
import { Name, plainText } from "./text";
import "./finding-marks.css";

const TONES = { error: "bad", warning: "warn", info: "plain" } as const;

export function FindingMarks({ run, marks }: { run: string; marks: readonly Mark[] }) {
  if (marks.length === 0) return null;
  return (
    <ul className="finding-marks small" aria-label="Findings of the check">
      {marks.map(({ audit, severity, message }) => (
        <li key={audit} className="row">
          <Badge tone={TONES[severity]}>{severity}</Badge>
          <Link className="mono" to={toRun(run, { audit })}>
            <Name text={audit} />
          </Link>
          <span className="soft">
            <Name text={message} most={160} />
          </span>
        </li>
      ))}
    </ul>
  );
}

/** A dot beside a row, with the names of the audits. */
export function FindingDot({ marks }: { marks: readonly Mark[] }) {
  const [worst] = marks;
  if (worst === undefined) return null;
  const names = marks.map(({ audit }) => plainText(audit)).join(", ");
  return <span className={`finding-dot ${TONES[worst.severity]}`} role="img" aria-label={`Findings: ${names}`} title={names} />;
}
