// A name that others gave, such as of an environment or a reward component: text of its own direction, and not too long.
import { plain } from "./plain";
import { Visible, whole } from "./said";

export function Name({ text, most = 120 }: { text: string; most?: number }) {
  const shown = text.length > most ? `${whole(text, most - 1)}…` : text;
  return (
    <bdi {...(shown === text ? {} : { title: plain(text, 1_000) })}>
      <Visible text={shown} />
    </bdi>
  );
}
