// Answers from the report that holds this page: stored ones, and rows of the table of rollouts.
import { decodeNames } from "../../column-names";
import { AnswerError, type Parameters, searchOf, type Selection, type Source } from "../source";
import type { Column, FacetsResponse, GroupResponse, NeighboursResponse, RolloutResponse, RolloutRow, RolloutsResponse } from "../schema";
import { type Head, readBlock, withMessages } from "./report-data";
import { filterRows, type Row, rowsOf, sortRows } from "./rows";

export class ReportSource implements Source {
  readonly live = false;
  readonly selection: Selection;
  private readonly columns: readonly Column[];
  /** The index of each stored answer, by the address of its question. */
  private readonly statistics: ReadonlyMap<string, number>;
  private rows: Promise<Row[]> | undefined;
  private readonly handlers: Record<string, (parameters: Parameters) => unknown>;

  constructor(private readonly head: Head) {
    this.selection = head.selection;
    this.columns = head.answers.run.columns;
    this.statistics = new Map(head.statistics.map(({ question, parameters }, index) => [addressOf(question, parameters), index]));
    this.handlers = {
      runs: () => head.answers.runs,
      run: () => head.answers.run,
      damage: () => ({ ...head.answers.run, coverage: 1 }),
      findings: () => head.answers.findings,
      rollout: (parameters) => this.rollout(String(parameters.id)),
      group: (parameters) => this.group(parameters),
      rollouts: (parameters) => this.rollouts(parameters),
      neighbours: (parameters) => this.neighbours(parameters),
      facets: (parameters) => this.facets(parameters),
    };
  }

  async ask<Answer>(question: string, parameters: Parameters = {}): Promise<Answer> {
    const handler = this.handlers[question];
    return (await (handler === undefined ? this.statistic(question, parameters) : handler(parameters))) as Answer;
  }

  has(question: string, parameters: Parameters): boolean {
    return this.statistics.has(addressOf(question, parameters));
  }

  image(_run: string, blob: string): string | null {
    return this.head.images[blob] ?? null;
  }

  private async statistic(question: string, parameters: Parameters): Promise<unknown> {
    const index = this.statistics.get(addressOf(question, parameters));
    if (index === undefined) throw new AnswerError("NotInReport", "This report does not have these numbers: open the run with `rolltrace view`.", 404);
    return (await readBlock("statistics"))[index];
  }

  /** Counts over all rollouts of the report: a selection is ignored. */
  private async facets({ columns }: Parameters): Promise<FacetsResponse> {
    const names = decodeNames(String(columns ?? ""));
    const counts = names.map(async (name) => [name, await this.statistic("facets", { columns: name })] as const);
    return { facets: Object.fromEntries(await Promise.all(counts)) as FacetsResponse["facets"] };
  }

  private async rollout(id: string): Promise<RolloutResponse> {
    const number = this.head.rollouts[id];
    const answer = number === undefined ? undefined : (await readBlock(`pack-${number}`)).rollouts[id];
    if (answer === undefined) throw missing(`rollout ${id}`);
    return answer;
  }

  private async group({ split, iteration, env, group }: Parameters): Promise<GroupResponse> {
    const key = JSON.stringify([split, Number(iteration), env, group]);
    const number = this.head.groups[key];
    const stored = number === undefined ? undefined : (await readBlock(`pack-${number}`)).groups[key];
    if (stored === undefined) throw missing(`group ${String(group)}`);
    return withMessages(stored, (id) => this.rollout(id));
  }

  private async rollouts(parameters: Parameters): Promise<RolloutsResponse> {
    const rows = await this.listed(parameters);
    const offset = Number(parameters.offset ?? 0);
    const names = decodeNames(String(parameters.columns ?? ""));
    const shown = rows.slice(offset, offset + Number(parameters.limit ?? 100));
    return { total: rows.length, offset, rows: shown.map((row) => pick(row, names)) };
  }

  private async neighbours(parameters: Parameters): Promise<NeighboursResponse> {
    const rows = await this.listed(parameters);
    const position = rows.findIndex((row) => row.id === parameters.id);
    if (position < 0) return { position: null, total: rows.length, previous: null, next: null };
    return { position, total: rows.length, previous: rows[position - 1]?.id ?? null, next: rows[position + 1]?.id ?? null };
  }

  /** The selected rows in order. */
  private async listed(parameters: Parameters): Promise<Row[]> {
    if (parameters.where) throw new AnswerError("NotInReport", "A report cannot run SQL: open the run with `rolltrace view`.", 400);
    this.rows ??= readBlock("table").then(rowsOf);
    const rows = filterRows(await this.rows, parameters, this.columns);
    const search = String(parameters.search ?? "").toLowerCase();
    const matches = search === "" ? null : await Promise.all(rows.map((row) => this.contains(row.id, search)));
    return sortRows(matches === null ? rows : rows.filter((_, index) => matches[index]), String(parameters.sort ?? ""), this.columns);
  }

  /** Whether a message or response of a rollout contains a text, in lower case. */
  private async contains(id: string, text: string): Promise<boolean> {
    const { rollout } = await this.rollout(id);
    const responses = rollout.steps.flatMap((step) => (typeof step.response === "number" ? [] : [step.response]));
    return [...rollout.messages, ...responses].some((message) => message.content.toLowerCase().includes(text));
  }
}

/** A server's request without its run: a report has only one. */
function addressOf(question: string, parameters: Parameters): string {
  const search = searchOf({ ...parameters, run: null });
  search.sort();
  return `${question}?${search}`;
}

function pick(row: Row, names: readonly string[]): RolloutRow {
  return { id: row.id, ...Object.fromEntries(names.map((name) => [name, row[name] ?? null])) } as RolloutRow;
}

function missing(what: string): AnswerError {
  return new AnswerError("NotInReport", `This report does not have the ${what}: it holds a part of the run.`, 404);
}
