// Answers from the report that the page stands in: asked the same questions as a server, it answers them alike.
import { readList } from "../../names";
import { AnswerError, type Parameters, type Selection, type Source } from "../source";
import type { Column, FacetsResponse, GroupResponse, NeighboursResponse, RolloutResponse, RolloutRow, RolloutsResponse, TruncatedMessage } from "../schema";
import { pack, type CarriedExcerpt, type CarriedGroup, type Head } from "./carried";
import { filtered, rowsOf, sorted, textOf, type Row } from "./rows";
import { environments, histogramOf, outcomes, series } from "./statistics";

const MOST_FACETS = 100;

type Answering = (parameters: Parameters) => unknown;

export class ReportSource implements Source {
  readonly live = false;
  readonly selection: Selection;
  private readonly rows: Row[];
  private readonly columns: Column[];
  private readonly questions: Record<string, Answering>;

  constructor(private readonly head: Head) {
    this.selection = head.selection;
    this.rows = rowsOf(head.columns);
    this.columns = head.answers.run.columns;
    this.questions = {
      runs: () => head.answers.runs,
      run: () => head.answers.run,
      findings: () => head.answers.findings,
      rollout: (parameters) => this.rollout(String(parameters.id)),
      group: (parameters) => this.group(parameters),
      rollouts: (parameters) => this.rollouts(parameters),
      facets: (parameters) => this.facets(parameters),
      neighbours: (parameters) => this.neighbours(parameters),
      histogram: async (parameters) => histogramOf(await this.found(parameters), parameters),
      series: async (parameters) => series(await this.found(parameters), parameters),
      outcomes: async (parameters) => outcomes(await this.found(parameters), this.rows),
      environments: async (parameters) => environments(await this.found(parameters), parameters),
    };
  }

  async ask<Answer>(question: string, parameters: Parameters = {}): Promise<Answer> {
    const answering = this.questions[question];
    if (answering === undefined) throw new AnswerError("Unanswered", "A report cannot answer this: open the run with `rolltrace view`.", 404);
    return (await answering(parameters)) as Answer;
  }

  image(_run: string, blob: string): string | null {
    return this.head.images[blob] ?? null;
  }

  private async rollout(id: string): Promise<RolloutResponse> {
    const place = this.head.rollouts[id];
    const answer = place === undefined ? undefined : (await pack(place)).rollouts[id];
    if (answer === undefined) throw missing(`rollout ${id}`);
    return answer;
  }

  private async group({ split, iteration, env, group }: Parameters): Promise<GroupResponse> {
    const key = JSON.stringify([split, Number(iteration), env, group]);
    const place = this.head.groups[key];
    const carried = place === undefined ? undefined : await pack(place);
    const answer = carried?.groups[key];
    if (carried === undefined || answer === undefined) throw missing(`group ${String(group)}`);
    return withMessages(answer, carried.rollouts);
  }

  /** The rows that are meant, in the order of the run. */
  private async found(parameters: Parameters, except?: string): Promise<Row[]> {
    if (parameters.where) throw new AnswerError("Unanswered", "A report cannot answer SQL: open the run with `rolltrace view`.", 400);
    const rows = filtered(this.rows, parameters, this.columns, except);
    const search = String(parameters.search ?? "").toLowerCase();
    if (search === "") return rows;
    const told = await Promise.all(rows.map((row) => this.says(row.id, search)));
    return rows.filter((_, place) => told[place]);
  }

  private async says(id: string, text: string): Promise<boolean> {
    const { rollout } = await this.rollout(id);
    const own = rollout.steps.flatMap((step) => (typeof step.response === "number" ? [] : [step.response]));
    return [...rollout.messages, ...own].some((message) => message.content.toLowerCase().includes(text));
  }

  private async listed(parameters: Parameters): Promise<Row[]> {
    return sorted(await this.found(parameters), String(parameters.sort ?? ""), this.columns);
  }

  private async rollouts(parameters: Parameters): Promise<RolloutsResponse> {
    const rows = await this.listed(parameters);
    const offset = Number(parameters.offset ?? 0);
    const names = namesIn(parameters.columns);
    const shown = rows.slice(offset, offset + Number(parameters.limit ?? 100));
    return { total: rows.length, offset, rows: shown.map((row) => only(row, names)) };
  }

  private async neighbours(parameters: Parameters): Promise<NeighboursResponse> {
    const rows = await this.listed(parameters);
    const position = rows.findIndex((row) => row.id === parameters.id);
    if (position < 0) return { position: null, total: rows.length, previous: null, next: null };
    return { position, total: rows.length, previous: rows[position - 1]?.id ?? null, next: rows[position + 1]?.id ?? null };
  }

  private async facets(parameters: Parameters): Promise<FacetsResponse> {
    const facets: FacetsResponse["facets"] = {};
    for (const column of namesIn(parameters.columns)) {
      const counts = new Map<string, number>();
      for (const row of await this.found(parameters, column)) {
        const value = row[column] ?? null;
        for (const one of Array.isArray(value) ? value : value === null ? [] : [value]) counts.set(textOf(one), (counts.get(textOf(one)) ?? 0) + 1);
      }
      facets[column] = [...counts]
        .map(([value, n]) => ({ value, n }))
        .sort((one, other) => other.n - one.n || (one.value < other.value ? -1 : 1))
        .slice(0, MOST_FACETS);
    }
    return { facets };
  }
}

function namesIn(columns: Parameters[string]): string[] {
  return Array.isArray(columns) ? [...columns] : readList(String(columns ?? ""));
}

function only(row: Row, names: readonly string[]): RolloutRow {
  return { id: row.id, ...Object.fromEntries(names.map((name) => [name, row[name] ?? null])) } as RolloutRow;
}

function missing(what: string): AnswerError {
  return new AnswerError("NotCarried", `This report does not hold the ${what}: it is of a part of the run.`, 404);
}

/** Messages of a group are carried once, with its rollouts: here they are put back into their places. */
function withMessages({ group, ...answer }: CarriedGroup, rollouts: Record<string, RolloutResponse>): GroupResponse {
  const read = ({ message, ...rest }: CarriedExcerpt): TruncatedMessage => {
    if (!isReference(message)) return { ...rest, message };
    const [id, place] = message;
    const whole = rollouts[id]?.rollout.messages[place];
    if (whole === undefined) throw missing(`message ${place} of rollout ${id}`);
    return { ...rest, message: whole };
  };
  const members = group.members.map((member) => ({ ...member, messages: member.messages.map(read) }));
  return { ...answer, group: { ...group, shared: group.shared.map(read), members } };
}

// `Array.isArray` does not tell a readonly list from an object.
const isReference = (message: CarriedExcerpt["message"]): message is Extract<CarriedExcerpt["message"], readonly unknown[]> => Array.isArray(message);
