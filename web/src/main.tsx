// Starts the page, on a server or inside a report.
// Shared styles are imported first, so that the styles of a page override them.
import "./styles/theme.css";
import "./styles/base.css";
import "./styles/shell.css";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { toRun } from "./addresses";
import { App } from "./app";
import { AnswerError, type Parameters, SourceContext } from "./source/source";
import { readHead } from "./source/report/report-data";
import { ReportSource } from "./source/report/report-source";
import { ServerSource } from "./source/server";
import { apply } from "./theme";

declare global {
  interface Window {
    /** For the browser's console: `await rolltrace.ask("rollouts", { run: "demo", sort: "-reward" })`. */
    rolltrace: { ask: (question: string, parameters?: Parameters) => Promise<unknown> };
  }
}

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 60_000,
      refetchOnWindowFocus: false,
      retry: (failures, error) => failures < 2 && !(error instanceof AnswerError && error.status >= 400),
    },
  },
});

apply();
const head = readHead();
const source = head === null ? new ServerSource() : new ReportSource(head);
window.rolltrace = { ask: (question, parameters) => source.ask(question, parameters) };
// A report has one run: its page comes first.
if (head !== null && window.location.hash.length < 3) window.history.replaceState(null, "", toRun(head.run));
const place = document.getElementById("page");
if (place === null) throw new Error("The document has no element for the page.");
createRoot(place).render(
  <StrictMode>
    <SourceContext value={source}>
      <QueryClientProvider client={client}>
        <App />
      </QueryClientProvider>
    </SourceContext>
  </StrictMode>,
);
