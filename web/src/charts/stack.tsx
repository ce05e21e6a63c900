// Shares of one whole as a bar that lies: each piece is a link, and each is named below it.
import { count, share } from "../format";
import "./charts.css";
import { Name } from "../parts/name";
import type { Share } from "./shares";

interface Properties {
  parts: readonly Share[];
  amount: (part: string) => number;
  whole: number;
  to: (part: string) => string;
  label: string;
}

export function Stack({ parts, amount, whole, to, label }: Properties) {
  const shown = parts.filter((part) => amount(part.name) > 0);
  return (
    <div className="stack-bar" role="group" aria-label={label}>
      <div className="stack-pieces" aria-hidden="true">
        {shown.map((part) => (
          <a
            key={part.name}
            href={to(part.name)}
            tabIndex={-1}
            className={`stack-piece ${part.colour}`}
            style={{ flexGrow: amount(part.name) / Math.max(1, whole) }}
          />
        ))}
      </div>
      <ul className="legend">
        {shown.map((part) => (
          <li key={part.name}>
            <a href={to(part.name)} title={`${count(amount(part.name))} of ${count(whole)}`}>
              <span className={`legend-mark ${part.colour}`} aria-hidden="true" /> <Name text={part.name} most={60} />{" "}
              <span className="number soft">{share(amount(part.name), whole)}</span>
            </a>
          </li>
        ))}
      </ul>
    </div>
  );
}
