// The record itself.
import { useMemo } from "react";
import { bytes } from "../../format";
import { CopyButton } from "../../parts/copy-button";
import { JsonLines, jsonText } from "../../parts/json-lines";
import type { Rollout } from "../../source/schema";

export function RawTab({ rollout }: { rollout: Rollout }) {
  const text = useMemo(() => jsonText(rollout), [rollout]);
  return (
    <>
      <div className="row spread wrap">
        <h2 className="panel-title">The record</h2>
        <span className="row">
          <span className="small faint">{bytes(text.length)}</span>
          <CopyButton text={text} what="the record" />
          <button type="button" className="button" onClick={() => download(text, `rollout-${rollout.id.replace(/[^\w-]/g, "_").slice(0, 64)}.json`)}>
            Download
          </button>
        </span>
      </div>
      <JsonLines text={text} label="The record as JSON" />
    </>
  );
}

function download(text: string, name: string): void {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
