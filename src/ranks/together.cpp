#include "ranks/together.h"

#include <algorithm>
#include <exception>

#include "base/divergence_error.h"
#include "base/error.h"

namespace so {
namespace {

// The first character of a rank's text says how its body ended.
enum Ending : char { done = '.', error = 'E', no_room = 'R', divergence = 'D', other = 'X' };

template <class Exception>
class OfAll final : public Exception, public ThrownByAll {
 public:
  using Exception::Exception;
};

std::string with(Ending ending, const std::string& text) { return std::string(1, ending) + text; }

std::string end_of(const std::function<std::string()>& body, std::exception_ptr& thrown) {
  try {
    return with(done, body());
  } catch (const RankFailure&) {
    throw;  // no collective can follow
  } catch (const NoRoom& failure) {
    thrown = std::current_exception();
    return with(no_room, failure.what());
  } catch (const Error& failure) {
    thrown = std::current_exception();
    return with(error, failure.what());
  } catch (const Divergence& failure) {
    thrown = std::current_exception();
    return with(divergence, failure.what());
  } catch (const std::exception& failure) {
    thrown = std::current_exception();
    return with(other, failure.what());
  }
}

}  // namespace

void fail_on_all(const std::string& sentence) { throw OfAll<Error>(sentence); }

std::vector<std::string> gather_texts(Communicator& ranks, const std::function<std::string()>& body) {
  if (ranks.size() == 1) return {body()};
  std::exception_ptr thrown;
  std::vector<std::string> texts = ranks.all_gather(end_of(body, thrown));
  const auto failed = std::find_if(texts.begin(), texts.end(), [](const std::string& t) { return t[0] != done; });
  if (failed == texts.end()) {
    for (std::string& text : texts) text.erase(0, 1);
    return texts;
  }
  const auto rank = static_cast<int>(failed - texts.begin());
  const std::string text = failed->substr(1);
  const std::string sentence = rank == 0 ? text : fmt::format("rank {}: {}", rank, text);
  if ((*failed)[0] == error) fail_on_all(sentence);
  if ((*failed)[0] == no_room) throw OfAll<NoRoom>(sentence);
  if ((*failed)[0] == divergence) throw OfAll<Divergence>(sentence);
  if (rank == ranks.rank()) std::rethrow_exception(thrown);
  throw Communicator::gave_up(rank, text);
}

void together(Communicator& ranks, const std::function<void()>& body) {
  gather_texts(ranks, [&] {
    body();
    return std::string();
  });
}

std::string on_first_rank(Communicator& ranks, const std::function<std::string()>& body) {
  return gather_texts(ranks, [&] { return ranks.rank() == 0 ? body() : std::string(); })[0];
}

}  // namespace so
