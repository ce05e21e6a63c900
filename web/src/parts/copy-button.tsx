// A button that copies a text.
import { useEffect, useState } from "react";

interface CopyButtonProperties {
  /** What to copy; a function where it costs something to make. */
  text: string | (() => string);
  /** What it is, for the accessible name: "Copy the message". */
  what: string;
  children?: React.ReactNode;
}

export function CopyButton({ text, what, children }: CopyButtonProperties) {
  const [state, setState] = useState<"idle" | "copied" | "failed">("idle");
  useEffect(() => {
    if (state === "idle") return;
    const timer = window.setTimeout(() => setState("idle"), 1_500);
    return () => window.clearTimeout(timer);
  }, [state]);
  const act = async () => setState((await copy(typeof text === "string" ? text : text())) ? "copied" : "failed");
  const label = state === "copied" ? "Copied" : state === "failed" ? "Could not copy" : `Copy ${what}`;
  return (
    <button type="button" className="button quiet copy" onClick={() => void act()} aria-label={label} title={label}>
      {state === "copied" ? "✓" : state === "failed" ? "✕" : <CopyMark />}
      {children}
    </button>
  );
}

/** Whether it worked; a page from a file may have no clipboard of its own, and then a selection is copied. */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.setAttribute("readonly", "");
    field.className = "only-heard";
    document.body.append(field);
    field.select();
    const worked = document.execCommand("copy");
    field.remove();
    return worked;
  }
}

function CopyMark() {
  return (
    <svg width="13" height="13" viewBox="0 0 16 16" fill="none" stroke="currentColor" strokeWidth="1.5" aria-hidden="true">
      <rect x="5.5" y="5.5" width="8" height="8" rx="1.5" />
      <path d="M10.5 5.5v-2a1 1 0 0 0-1-1h-6a1 1 0 0 0-1 1v6a1 1 0 0 0 1 1h2" />
    </svg>
  );
}
