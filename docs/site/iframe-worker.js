// The search runs in a worker, which browsers refuse to pages that are read from disk. There a hidden
// frame that loads the same script stands in for it.
if (location.protocol === "file:") {
  const PRELUDE = `
    self.postMessage = data => frameElement.worker.dispatchEvent(new MessageEvent("message", {data}));
    self.importScripts = (...urls) => Promise.all(urls.map(src => new Promise((onload, onerror) => {
      document.head.append(Object.assign(document.createElement("script"), {src, onload, onerror, async: false}));
    })));`;

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.worker = this;
      this.frame.hidden = true;
      this.frame.srcdoc = `<script>${PRELUDE}</script><script src="${new URL(url, location)}"></script>`;
      this.loaded = new Promise(done => { this.frame.onload = done; });
      document.body.append(this.frame);
    }

    async postMessage(data) {
      await this.loaded;
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data}));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
