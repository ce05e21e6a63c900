// Free text that is searched for in prompts and responses.
import { useEffect, useState, type RefObject } from "react";
import { useListing } from "./listing";

export function SearchField({ field }: { field: RefObject<HTMLInputElement | null> }) {
  const { listing, change } = useListing();
  const [typed, setTyped] = useState(listing.search);
  useEffect(() => setTyped(listing.search), [listing.search]);
  return (
    <form
      className="rollouts-search"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        change({ search: typed.trim() });
      }}
    >
      <input
        ref={field}
        className="field"
        type="search"
        aria-label="Search prompts and responses"
        placeholder="Search prompts and responses"
        title="Enter searches all that was said; that may take some seconds"
        value={typed}
        onChange={(event) => {
          setTyped(event.target.value);
          if (event.target.value === "" && listing.search !== "") change({ search: "" });
        }}
      />
      <kbd aria-hidden="true">{typed !== listing.search ? "↵" : "/"}</kbd>
    </form>
  );
}
