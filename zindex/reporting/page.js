"use strict";
// Tables sort by the column whose header is pressed; long ones show all rows on request.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const headers = [...table.tHead.rows[0].cells];
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
  };
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const isDown = header.getAttribute("aria-sort") !== "descending";
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", isDown ? "descending" : "ascending");
      table.classList.remove("short");
      table.parentElement.parentElement.querySelectorAll("button.more").forEach((more) => more.remove());
      const rows = [...body.rows];
      rows.sort((a, b) => {
        const left = valueOf(a, column), right = valueOf(b, column);
        const order = typeof left === "number" ? left - right : left.localeCompare(right);
        return isDown ? -order : order;
      });
      body.append(...rows);
    });
  });
  if (body.querySelector("tr.extra")) {
    const more = document.createElement("button");
    more.type = "button";
    more.className = "more";
    more.textContent = `Show all ${body.querySelectorAll("tr:not(.rest)").length.toLocaleString("en")} rows`;
    more.addEventListener("click", () => { table.classList.remove("short"); more.remove(); });
    table.parentElement.after(more);
  }
}
