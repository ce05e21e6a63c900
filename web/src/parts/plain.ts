// Text of others where only plain text can stand, such as options and labels: one line, short, nothing unseen in it.

const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]+|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

export function plain(text: string, most = 80): string {
  const seen = text.slice(0, 4 * most).replace(UNSEEN, "�");
  const letters = [...seen];
  return letters.length > most || text.length > 4 * most ? `${letters.slice(0, most - 1).join("")}…` : seen;
}
