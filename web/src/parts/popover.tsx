// A button that opens a panel above everything else; Escape or a click elsewhere closes it.
import { useCallback, useEffect, useId, useLayoutEffect, useRef, useState, type ReactNode, type RefObject } from "react";
import "./popover.css";

interface PopoverProperties {
  /** What the button shows. */
  button: ReactNode;
  /** What the panel is called, and the button too where it shows no words. */
  label: string;
  children: (close: () => void) => ReactNode;
  className?: string;
  buttonRef?: RefObject<HTMLButtonElement | null>;
  buttonLabel?: string;
  pressed?: boolean;
  wide?: boolean;
}

const EDGE = 8;

export function Popover({ button, label, children, className = "button", buttonRef, buttonLabel, pressed, wide = false }: PopoverProperties) {
  const id = useId();
  const own = useRef<HTMLButtonElement>(null);
  const trigger = buttonRef ?? own;
  const panel = useRef<HTMLDivElement>(null);
  const [open, setOpen] = useState(false);
  const close = useCallback(() => panel.current?.hidePopover(), []);
  usePlacement(open, trigger, panel);
  useEffect(() => {
    if (open && !window.matchMedia("(pointer: coarse)").matches) panel.current?.querySelector<HTMLElement>("input, button, select, a")?.focus();
  }, [open]);
  return (
    <>
      <button
        ref={trigger}
        type="button"
        className={className}
        popoverTarget={id}
        aria-haspopup="dialog"
        aria-expanded={open}
        aria-label={buttonLabel}
        data-active={pressed === true ? "" : undefined}
      >
        {button}
      </button>
      <div
        ref={panel}
        id={id}
        popover="auto"
        role="dialog"
        aria-label={label}
        className={`popover ${wide ? "wide" : ""}`}
        onToggle={(event) => setOpen(event.newState === "open")}
        onKeyDown={(event) => {
          // Keys pressed in the panel are no shortcuts of the view behind it.
          event.stopPropagation();
          if (event.key === "Escape") close();
        }}
      >
        {open && children(close)}
      </div>
    </>
  );
}

/** Keep the panel beside its button, and inside the window. */
function usePlacement(open: boolean, trigger: RefObject<HTMLElement | null>, panel: RefObject<HTMLElement | null>): void {
  useLayoutEffect(() => {
    if (!open) return;
    const place = (): void => {
      if (trigger.current === null || panel.current === null) return;
      const { left, top, bottom } = trigger.current.getBoundingClientRect();
      const below = window.innerHeight - bottom - 2 * EDGE;
      const under = below > 260 || below > top;
      const { style } = panel.current;
      style.left = `${Math.max(EDGE, Math.min(left, window.innerWidth - panel.current.offsetWidth - EDGE))}px`;
      style.top = under ? `${bottom + 4}px` : "auto";
      style.bottom = under ? "auto" : `${window.innerHeight - top + 4}px`;
      style.maxHeight = `${Math.max(160, under ? below : top - 2 * EDGE)}px`;
    };
    place();
    window.addEventListener("resize", place);
    window.addEventListener("scroll", place, { passive: true });
    return () => {
      window.removeEventListener("resize", place);
      window.removeEventListener("scroll", place);
    };
  }, [open, trigger, panel]);
}
