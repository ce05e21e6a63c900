// Answers from the server that the page was loaded from.
import { AnswerError, searchOf, type Parameters, type Source } from "./source";
import type { ErrorResponse } from "./schema";

const POSTED = new Set(["sql", "check"]);

export class ServerSource implements Source {
  readonly live = true;
  readonly selection = null;

  async ask<Answer>(question: string, parameters: Parameters = {}): Promise<Answer> {
    const response = POSTED.has(question)
      ? await reach(`api/${question}`, {
          method: "POST",
          headers: { "content-type": "application/json" },
          body: JSON.stringify(parameters),
        })
      : await reach(`api/${question}?${searchOf(parameters)}`);
    if (!response.ok) throw await refusal(response);
    return (await response.json()) as Answer;
  }

  has(): boolean {
    return true;
  }

  image(run: string, blob: string): string | null {
    return `api/blob?${searchOf({ run, name: blob })}`;
  }
}

async function reach(address: string, init?: RequestInit): Promise<Response> {
  try {
    return await fetch(address, { ...init, credentials: "same-origin" });
  } catch {
    throw new AnswerError("Unreachable", "The server does not answer: is `rolltrace view` still running?", 0);
  }
}

async function refusal(response: Response): Promise<AnswerError> {
  try {
    const { error } = (await response.json()) as ErrorResponse;
    return new AnswerError(error.type, error.message, response.status);
  } catch {
    return new AnswerError("Error", `The server answered ${response.status} ${response.statusText}.`, response.status);
  }
}
