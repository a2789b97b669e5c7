#include "runtime/net/catalog.h"

#include <array>

#include "runtime/net/collectives/hierarchy.h"
#include "runtime/net/gloo/gloo_backend.h"

namespace sirtaki::net {
namespace {

constexpr std::array kBackends = {
    Backend{"direct", "every rank talks to every other one; sums add in rank order, so results never depend on timing",
            [](const BackendSetup& setup) -> std::unique_ptr<Collectives> {
              if (HierarchicalCollectives::fits(setup.direct.hosts)) {
                return std::make_unique<HierarchicalCollectives>(*setup.link, setup.direct, setup.shared);
              }
              return std::make_unique<DirectCollectives>(*setup.link, setup.direct.flat(), setup.shared);
            }},
    Backend{"gloo",
            "the algorithms of the Gloo library (ring all-reduce) over the same connections; sums round differently",
            [](const BackendSetup& setup) { return make_gloo(*setup.link, setup.direct); }},
};

}  // namespace

std::span<const Backend> backends() {
  return kBackends;
}

Result<std::unique_ptr<Collectives>> make_collectives(std::string_view name, const BackendSetup& setup) {
  std::string names;
  for (const Backend& backend : kBackends) {
    if (backend.name == name) {
      std::unique_ptr<Collectives> made = backend.make(setup);
      if (made == nullptr) {
        return invalid_argument("net.backend = \"" + std::string(name) +
                                "\": this build of Sirtaki leaves this backend out; use net.backend = \"direct\", or "
                                "build Sirtaki with the library (Debian: libgloo-dev, then `make build`)");
      }
      return made;
    }
    names += (names.empty() ? "" : ", ") + std::string(backend.name);
  }
  return invalid_argument("there is no collectives backend '" + std::string(name) + "'; there are: " + names);
}

}  // namespace sirtaki::net
