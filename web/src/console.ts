// What a person may ask in the browser's console: `await rolltrace.ask("rollouts", { run: "demo", sort: "-reward" })`.
import type { Parameters, Source } from "./source/source";

declare global {
  interface Window {
    rolltrace: { ask: (question: string, parameters?: Parameters) => Promise<unknown> };
  }
}

export function offer(source: Source): void {
  window.rolltrace = { ask: (question, parameters) => source.ask(question, parameters) };
}
