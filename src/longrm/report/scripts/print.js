// On paper nothing can be opened: what is folded is printed open, but the settings of the runs.
let unfolded = [];
window.addEventListener("beforeprint", () => {
  unfolded = [...document.querySelectorAll("main details:not([open]):not(.settings)")];
  unfolded.forEach((details) => { details.open = true; });
});
window.addEventListener("afterprint", () => unfolded.forEach((details) => { details.open = false; }));
