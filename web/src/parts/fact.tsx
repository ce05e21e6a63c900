// A name with its value, in a list of facts.
import type { ReactNode } from "react";

interface FactProperties {
  name: string;
  title?: string;
  /** Stands below it, small. */
  note?: ReactNode;
  large?: boolean;
  children: ReactNode;
}

export function Fact({ name, title, note = null, large = false, children }: FactProperties) {
  return (
    <div title={title} className={large ? "large" : undefined}>
      <dt>{name}</dt>
      <dd>{children}</dd>
      {note !== null && <dd className="tiny faint">{note}</dd>}
    </div>
  );
}
