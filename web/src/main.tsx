// Starts the page: on a server, or inside a report that carries its answers.
// The styles that all share come first, so that those of a page go before them.
import "./styles/theme.css";
import "./styles/base.css";
import "./styles/shell.css";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { toRun } from "./addresses";
import { App } from "./app";
import { offer } from "./console";
import { AnswerError, SourceContext } from "./source/source";
import { readHead } from "./source/report/report-data";
import { ReportSource } from "./source/report/report-source";
import { ServerSource } from "./source/server";
import { apply } from "./theme";

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
offer(source);
// A report is about one run: there is nothing to choose.
if (head !== null && window.location.hash.length < 3) window.history.replaceState(null, "", toRun(head.run));
const place = document.getElementById("page");
if (place === null) throw new Error("the page has no place to stand");
createRoot(place).render(
  <StrictMode>
    <SourceContext value={source}>
      <QueryClientProvider client={client}>
        <App />
      </QueryClientProvider>
    </SourceContext>
  </StrictMode>,
);
