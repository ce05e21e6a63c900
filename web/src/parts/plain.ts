// Text of others where only plain text can stand, such as options and labels: one line, short, nothing unseen in it.
import { UNSEEN_IN_LINE } from "./unseen";

export function plain(text: string, most = 80): string {
  const seen = text.slice(0, 4 * most).replace(UNSEEN_IN_LINE, "�");
  const letters = [...seen];
  return letters.length > most || text.length > 4 * most ? `${letters.slice(0, most - 1).join("")}…` : seen;
}
