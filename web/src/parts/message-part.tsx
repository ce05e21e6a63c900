// A part of a message that is not text: an image is shown, anything else is named.
import { useState } from "react";
import { useSource } from "../source/source";
import type { Part } from "../source/schema";
import { Badge } from "./badge";
import { CopyButton } from "./copy-button";
import { JsonTree } from "./json-tree";
import { VisibleText } from "./text";

const RASTER = /^image\/(png|jpeg|gif|webp)$/;

export function MessagePart({ run, part }: { run: string; part: Part }) {
  const source = useSource();
  const [broken, setBroken] = useState(false);
  const type = part.media_type ?? "image/png";
  const address = part.blob && (part.type === "image" || type.startsWith("image/")) && RASTER.test(type) ? source.image(run, part.blob) : null;
  return (
    <div className="message-part">
      <div className="row wrap">
        <Badge>
          <VisibleText text={part.type.slice(0, 60)} />
        </Badge>
        {part.media_type && (
          <bdi className="faint small">
            <VisibleText text={part.media_type.slice(0, 80)} />
          </bdi>
        )}
        {part.blob && (
          <span className="faint small mono">
            {part.blob.slice(0, 15)}… <CopyButton text={part.blob} what="the name of the blob" />
          </span>
        )}
        {part.url && (
          <span className="small message-part-address">
            <bdi className="mono">
              <VisibleText text={part.url.slice(0, 300)} />
            </bdi>
            {part.url.length > 300 && "…"} <CopyButton text={part.url} what="the address" />
          </span>
        )}
      </div>
      {address !== null && !broken && <img className="message-image" src={address} alt="Image in the message" loading="lazy" onError={() => setBroken(true)} />}
      {broken && <p className="small bad">The image could not be shown: its bytes are missing or are not an image.</p>}
      {part.blob && address === null && part.type === "image" && <p className="small faint">This image is not available here.</p>}
      {part.other !== undefined && part.other !== null && <JsonTree value={part.other} label="other fields" />}
    </div>
  );
}
