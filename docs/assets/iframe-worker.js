// Search in pages opened from a folder: browsers allow no worker there, so one is made of a hidden frame.
// Enough for the search worker of the theme, which listens for messages and answers with postMessage.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      const source = new URL(address, location.href).href;
      this.ready = new Promise((resolve) => {
        frame.addEventListener("load", () => resolve(frame.contentWindow), { once: true });
      });
      window.addEventListener("message", (event) => {
        if (event.source === frame.contentWindow) {
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        }
      });
      frame.srcdoc = `<script>postMessage = (data) => parent.postMessage(data, "*")</script>
        <script src="${source}"></script>`;
      document.body.append(frame);
    }

    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
