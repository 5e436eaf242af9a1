// The order of search results. A heading that contains the words as they were typed comes first: the search compares
// stems, and "metastability" has the stem of the name of this project, which is on almost every page.
var Scorer = {
  score: ([page, , , , score, , kind]) =>
    score + (kind === "title" ? 20 : 0) - (page === "changelog" ? 3 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
