// Makes and changes elements. Nothing here, or in any other module, turns a text into markup: what users name is set as
// text or as the value of an attribute, and the page's policy forbids all else.

const SVG = "http://www.w3.org/2000/svg";

// A wanted element: h("td", {class: "n"}, "12"). Children: texts, numbers, wanted elements, lists of them; null and
// false are left out. The property `key` tells brothers apart that may come, go and change places.
export function h(tag, props, ...children) {
  return {tag, props: props || {}, key: props ? props.key : undefined, children: flat(children)};
}

function flat(children, into = []) {
  for (const child of children) {
    if (Array.isArray(child)) flat(child, into);
    else if (child !== null && child !== undefined && child !== false && child !== true) {
      into.push(typeof child === "object" ? child : {text: String(child)});
    }
  }
  return into;
}

// Make the children of `parent` what is wanted, and keep what is there already: focus, selection and scrolling stay.
export function render(parent, ...wanted) {
  patch(parent, flat(wanted), parent.namespaceURI === SVG);
}

function patch(parent, wanted, inSvg) {
  const before = parent.wanted || [];
  const keyed = new Map();
  const rest = [];
  for (const one of before) {
    if (one.key !== undefined) keyed.set(one.key, one);
    else rest.push(one);
  }
  let next = 0;
  let place = parent.firstChild;
  for (const one of wanted) {
    let old;
    if (one.key !== undefined) {
      old = keyed.get(one.key);
      if (old && old.tag !== one.tag) old = undefined;
      else keyed.delete(one.key);
    } else if (next < rest.length && rest[next].tag === one.tag) {
      old = rest[next++];
    }
    one.node = old ? old.node : made(one, inSvg);
    if (one.tag === undefined) {
      if (!old || old.text !== one.text) one.node.data = one.text;
    } else {
      apply(one.node, old ? old.props : {}, one.props);
      if (!one.props.opaque) patch(one.node, one.children, one.node.namespaceURI === SVG);
    }
    if (one.node === place) place = place.nextSibling;
    else parent.insertBefore(one.node, place);
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
  parent.wanted = wanted;
}

function made(one, inSvg) {
  if (one.tag === undefined) return document.createTextNode(one.text);
  return inSvg || one.tag === "svg" ? document.createElementNS(SVG, one.tag) : document.createElement(one.tag);
}

function apply(node, before, props) {
  for (const name of Object.keys(before)) {
    if (!(name in props)) set(node, name, null, before[name]);
  }
  for (const [name, value] of Object.entries(props)) {
    if (name === "style" || before[name] !== value) set(node, name, value, before[name]);
  }
}

function set(node, name, value, before) {
  if (name === "key" || name === "opaque") return;
  if (name.startsWith("on")) {
    node[name] = value;
  } else if (name === "style") {  // property by property: the policy forbids the attribute
    for (const each of Object.keys(before || {})) if (!value || !(each in value)) node.style.removeProperty(each);
    for (const [each, is] of Object.entries(value || {})) if (!before || before[each] !== is) node.style.setProperty(each, is);
  } else if (value === null || value === undefined || value === false) {
    node.removeAttribute(name);
  } else {
    node.setAttribute(name, value === true ? "" : String(value));
  }
}
