// How the page is built: one script and one style sheet, which the server sends and which a report carries inside itself.
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
        // Fixed names, under which server and report find them.
        codeSplitting: false,
        entryFileNames: "assets/page.js",
        assetFileNames: "assets/page[extname]",
      },
    },
  },
});
