// Browsers refuse workers to pages that are opened as files. There, the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #scope;
    #loaded;

    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.#scope = frame.contentWindow;
      this.#scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.#loaded = new Promise((resolve, reject) => {
        const script = this.#scope.document.createElement("script");
        script.onload = resolve;
        script.onerror = () => reject(new Error(`${url}: cannot be loaded; the search needs it`));
        script.src = url;
        this.#scope.document.body.append(script);
      });
    }

    postMessage(data) {
      this.#loaded.then(() => this.#scope.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
