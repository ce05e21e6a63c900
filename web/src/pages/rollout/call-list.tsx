// A list of model calls, each folded to one line.
import { useEffect, useRef, useState } from "react";
import { plural, seconds } from "../../format";
import { Badge } from "../../parts/badge";
import { FailureBox } from "../../parts/failure";
import { MessageView, toggled } from "../../parts/message";
import { Name, VisibleText, truncated } from "../../parts/text";
import { TextPiece } from "../../parts/text-piece";
import { VirtualRows, type VirtualRowsHandle } from "../../parts/virtual-rows";
import type { Call, Message } from "../../source/schema";

export function CallList({ run, calls, chosen = null }: { run: string; calls: readonly Call[]; chosen?: number | null }) {
  const [opened, setOpened] = useState<ReadonlySet<string>>(new Set(calls.length === 1 ? ["0"] : []));
  const list = useRef<VirtualRowsHandle>(null);
  useEffect(() => {
    const place = chosen === null ? -1 : calls.findIndex((call) => call.step === chosen);
    if (place >= 0) list.current?.show(place);
  }, [calls, chosen]);
  return (
    <VirtualRows rows={calls} keyOf={(_, index) => index} estimate={() => 58} label="Calls" className="panel-rows" handle={list}>
      {(call, index) => (
        <CallEntry
          run={run}
          calls={calls}
          index={index}
          chosen={chosen !== null && call.step === chosen}
          open={opened.has(String(index))}
          toggle={() => setOpened((before) => toggled(before, String(index)))}
        />
      )}
    </VirtualRows>
  );
}

interface CallProperties {
  run: string;
  calls: readonly Call[];
  index: number;
  chosen: boolean;
  open: boolean;
  toggle: () => void;
}

function CallEntry({ run, calls, index, chosen, open, toggle }: CallProperties) {
  const call = calls[index] as Call;
  const [earlier, setEarlier] = useState(false);
  const before = open ? conversationBefore(calls, index) : [];
  return (
    <article className={chosen ? "panel-call chosen" : "panel-call"}>
      <button type="button" className="panel-call-head" aria-expanded={open} onClick={toggle}>
        <span className="row wrap">
          <span aria-hidden="true" className="faint">
            {open ? "▾" : "▸"}
          </span>
          <b>
            <Name text={call.role} most={40} />
          </b>
          {call.about && (
            <Badge>
              <Name text={call.about} most={80} />
            </Badge>
          )}
          {call.error !== null && <Badge tone="bad">failed</Badge>}
          {call.error === null && call.reply === null && <Badge tone="warn">no answer yet</Badge>}
          <span className="small faint panel-call-costs">
            {call.step === null ? "after the end" : `step ${call.step}`}
            {call.seconds !== null && ` · ${seconds(call.seconds)}`}
          </span>
        </span>
        {!open && <span className="panel-call-preview small soft">{call.reply === null ? "" : <VisibleText text={truncated(call.reply.content.trim().split("\n").join(" ").slice(0, 400), 160)} />}</span>}
      </button>
      {open && (
        <div className="stack panel-call-body">
          <p className="small faint">
            <Name text={call.policy} />
            {call.policy_version !== null && (
              <>
                , version <Name text={String(call.policy_version)} most={40} />
              </>
            )}
            {call.usage !== null && `, ${plural(call.usage.completion_tokens, "token")} of response, ${call.usage.prompt_tokens} of prompt`}
            {call.termination && (
              <>
                , ended by <Name text={call.termination} most={40} />
              </>
            )}
          </p>
          {before.length > 0 && (
            <button type="button" className="link" aria-expanded={earlier} onClick={() => setEarlier(!earlier)}>
              {earlier ? "Hide" : "Show"} {plural(before.length, "message")} of the conversation that it continues
            </button>
          )}
          {[...(earlier ? before : []), ...call.prompt, ...(call.reply === null ? [] : [call.reply])].map((message, place) => (
            <MessageView key={place} run={run} message={message} />
          ))}
          {call.raw !== null && (
            <details>
              <summary className="small">Before it was parsed</summary>
              <TextPiece text={call.raw.slice(0, 50_000)} mono />
            </details>
          )}
          {call.error !== null && <FailureBox error={call.error} />}
        </div>
      )}
    </article>
  );
}

/** The messages before a call's own prompt, from the calls that it continues. */
function conversationBefore(calls: readonly Call[], index: number): Message[] {
  const before: Message[] = [];
  let at = calls[index]?.continues_call ?? null;
  // Only earlier calls can be continued; a record that says otherwise must not lead in a circle.
  for (let last = index; at !== null && at < last && at >= 0; ) {
    const call = calls[at];
    if (call === undefined) break;
    before.unshift(...call.prompt, ...(call.reply === null ? [] : [call.reply]));
    last = at;
    at = call.continues_call ?? null;
  }
  return before;
}
