// How the page is built: two entries' worth of files from one source, as assets for the server and as one script for reports.
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

export default defineConfig({
  plugins: [react()],
  base: "./",
  build: {
    outDir: process.env.ROLLTRACE_WEB_OUT ?? "dist",
    emptyOutDir: true,
    target: "es2022",
    cssCodeSplit: false,
    modulePreload: false,
    rollupOptions: {
      output: {
        // One script and one style sheet, with fixed names: a report carries them inside itself.
        codeSplitting: false,
        entryFileNames: "assets/page.js",
        assetFileNames: "assets/page[extname]",
      },
    },
  },
});
