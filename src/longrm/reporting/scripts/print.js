// Folded parts are printed open, except the settings of the runs.
let unfolded = [];
window.addEventListener("beforeprint", () => {
  unfolded = [...document.querySelectorAll("main details:not([open]):not(.settings)")];
  unfolded.forEach((details) => { details.open = true; });
});
window.addEventListener("afterprint", () => unfolded.forEach((details) => { details.open = false; }));
