import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

const ASSETS = "../src/hocket/observe/serve/assets";

// Paths are relative, so that the page works behind any proxy; nothing is loaded from elsewhere. A page of one file has
// one script: charts, which the page of a server loads when it needs them, are in it.
export default defineConfig(({ mode }) => ({
  base: "./",
  plugins: [svelte()],
  build: {
    outDir: mode === "one-file" ? `${ASSETS}/one-file` : ASSETS,
    emptyOutDir: true,
    sourcemap: false,
    target: "es2022",
    chunkSizeWarningLimit: 1000,
    rolldownOptions: { output: { codeSplitting: mode !== "one-file" } },
  },
}));
