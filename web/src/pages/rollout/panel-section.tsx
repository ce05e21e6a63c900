// A titled part of the side panel.
import type { ReactNode } from "react";
import type { Json } from "../../source/schema";
import { JsonTree } from "../../parts/json-tree";

export function PanelSection({ title, note, children }: { title: string; note?: ReactNode; children: ReactNode }) {
  return (
    <section className="panel-section">
      <div className="row spread">
        <h3>{title}</h3>
        {note !== undefined && <span className="small faint">{note}</span>}
      </div>
      {children}
    </section>
  );
}

/** A free-form map as a section, or nothing where it is empty. */
export function FreeForm({ title, value, open = 2 }: { title: string; value: { [key: string]: Json }; open?: number }) {
  if (Object.keys(value).length === 0) return null;
  return (
    <PanelSection title={title}>
      <Fields value={value} open={open} />
    </PanelSection>
  );
}

/** The fields of a map, without a line for the map itself. */
export function Fields({ value, open = 1 }: { value: { [key: string]: Json }; open?: number }) {
  return (
    <div>
      {Object.entries(value)
        .slice(0, 300)
        .map(([name, one]) => (
          <JsonTree key={name} label={name} value={one} open={open - 1} />
        ))}
    </div>
  );
}
