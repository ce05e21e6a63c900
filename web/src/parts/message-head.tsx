// The role of a message, and a button that copies it.
import type { ReactNode } from "react";
import type { Message } from "../source/schema";
import { CopyButton } from "./copy-button";
import { VisibleText } from "./text";

const ROLES = new Set(["system", "user", "assistant", "tool"]);

/** The class that colours a role. */
export const roleClass = (role: string): string => `role-${role === "developer" ? "system" : ROLES.has(role) ? role : "other"}`;

export function MessageHead({ message, children }: { message: Message; children?: ReactNode }) {
  return (
    <div className="message-head">
      <bdi className="message-role">
        <VisibleText text={message.role.slice(0, 60)} />
      </bdi>
      {message.name && (
        <bdi className="small mono">
          <VisibleText text={message.name.slice(0, 120)} />
        </bdi>
      )}
      {message.role === "tool" && message.tool_call_id && (
        <bdi className="small faint mono">
          <VisibleText text={message.tool_call_id.slice(0, 60)} />
        </bdi>
      )}
      {children}
      <span className="message-acts">
        <CopyButton text={() => messageText(message)} what="the message" />
      </span>
    </div>
  );
}

/** A message as one would paste it: its text, or where it has none all of it as JSON. */
function messageText(message: Message): string {
  return message.content !== "" ? message.content : JSON.stringify(message, null, 2);
}
